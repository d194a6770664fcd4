package seed

// categories are the rows of categories, with ids from 1.
var categories = [...]struct {
	name        string
	share       int // the percentage of pets that belong to it
	description string
}{
	{name: "Dogs", share: 26, description: "Loyal company for long walks, from lap dogs to sheepdogs."},
	{name: "Cats", share: 22, description: "House cats, short-haired and long-haired. They will choose you."},
	{name: "Birds", share: 12, description: "Budgerigars, canaries and parrots. Please keep them in pairs."},
	{name: "Fish", share: 12, description: "Freshwater fish for aquariums of 60 litres and more."},
	{name: "Rabbits", share: 7, description: "Dwarf and lop-eared rabbits, used to children."},
	{name: "Hamsters", share: 5, description: "Golden and dwarf hamsters, awake when you are not."},
	{name: "Guinea pigs", share: 5, description: "Sold in twos, since one alone is unhappy."},
	{name: "Tortoises", share: 3, description: "Bred here, with papers. A companion for several generations."},
	{name: "Horses", share: 3, description: "Ponies and riding horses, to be met at the stable."},
	{name: "Ferrets", share: 2, description: "Quick, curious and vaccinated."},
	{name: "Frogs", share: 2, description: "Tree frogs for a well-kept terrarium."},
	{name: "Stick insects", share: 1, description: "The quietest pet there is. Feed them bramble leaves."},
}

// quantities are the possible units of an order. Repeated values are more likely.
var quantities = [...]int{1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 6, 10}

var names = [...]string{
	"Abby", "Achilles", "Ada", "Ágnes", "Ajax", "Alfie", "Amélie", "Angus", "Anouk", "Apollo", "Archie", "Aşkım",
	"Bailey", "Balu", "Bandit", "Barnaby", "Bella", "Benji", "Biscuit", "Björn", "Blue", "Bonnie", "Bruno", "Buddy",
	"Caesar", "Charlie", "Chloé", "Cleo", "Clover", "Coco", "Cookie", "Cosmo", "Daisy", "Dante", "Diego", "Dolly",
	"Duke", "Dusty", "Echo", "Edda", "Elvis", "Emma", "Enzo", "Ernie", "Esme", "Fabio", "Felix", "Fern", "Fido",
	"Filou", "Finn", "Flöckchen", "Freya", "Frida", "Fudge", "Garfield", "Gigi", "Ginger", "Gizmo", "Gojko", "Greta",
	"Gus", "Håkon", "Hazel", "Heidi", "Henry", "Hermes", "Honey", "Hugo", "Iggy", "Ines", "Iris", "Ivy", "Jack",
	"Jasper", "Jörmungand", "Juno", "Kaya", "Kiki", "Kiwi", "Koko", "Krümel", "Kuma", "Łatka", "Leo", "Lilly",
	"Loki", "Lola", "Lotte", "Lucky", "Luna", "Mabel", "Maja", "Mango", "Marley", "Max", "Mia", "Milo", "Mimi",
	"Minka", "Mitzi", "Mochi", "Molly", "Monty", "Mruczek", "Müsli", "Nala", "Nemo", "Niño", "Noodle", "Odin",
	"Olive", "Oreo", "Oscar", "Otto", "Øyvind", "Pablo", "Paprika", "Pepper", "Percy", "Phoebe", "Pippa", "Pixel",
	"Poppy", "Pumpkin", "Quincy", "Rex", "Riley", "Rocky", "Rosie", "Ruby", "Rufus", "Sadie", "Salem", "Sami",
	"Şanslı", "Scout", "Shadow", "Simba", "Socks", "Sophie", "Stella", "Sunny", "Tabitha", "Tango", "Teddy", "Tilly",
	"Toby", "Tofu", "Tyson", "Ümit", "Ursula", "Vanilla", "Violet", "Waffles", "Willow", "Winston", "Xena", "Yoda",
	"Zara", "Zazie", "Zeus", "Ziggy", "Žofka", "Zoë", "Zorro",
}

var otherScripts = [...]string{
	"小白", "小黑", "旺财", "咪咪", "豆豆", "さくら", "もも", "タロウ", "ハチ公", "콩이", "보리", "초코",
	"Мурка", "Барсик", "Шарик", "Рекс", "Кеша", "Σπίθα", "Άργος", "Ψιψίνα", "לולה", "שוקו", "لولو", "سمسم",
	"मोती", "शेरू", "Արջուկ", "ლომა", "มะลิ",
}

var titles = [...]string{
	"Admiral", "Auntie", "Baby", "Baron", "Baroness", "Big", "Captain", "Count", "Doctor", "Duchess", "General",
	"King", "Lady", "Little", "Lord", "Madame", "Major", "Miss", "Mister", "Old", "Prince", "Princess", "Professor",
	"Queen", "Saint", "Señor", "Sergeant", "Sir", "Sister", "Uncle",
}

var epithets = [...]string{
	"Junior", "Senior", "the Bold", "the Brave", "the Calm", "the Clever", "the Clumsy", "the Curious", "the Elder",
	"the Fierce", "the First", "the Fluffy", "the Gentle", "the Great", "the Grey", "the Hungry", "the Kind",
	"the Lazy", "the Loud", "the Merry", "the Mighty", "the Nimble", "the Patient", "the Proud", "the Quick",
	"the Quiet", "the Red", "the Second", "the Shy", "the Silent", "the Sleepy", "the Sly", "the Spotted",
	"the Striped", "the Swift", "the Tall", "the Third", "the Tiny", "the Unready", "the Wanderer", "the White",
	"the Wise", "the Younger",
}

var places = [...]string{
	"Alder Lane", "Amber Bay", "Ashdown", "Barley Field", "Birch Wood", "Bramble Hill", "Bridge End", "Brook Street",
	"Cedar Falls", "Chapel Hill", "Cherry Orchard", "Clover Farm", "Coal Harbour", "Copper Mill", "Crow's Nest",
	"Dale House", "Dover Road", "Eagle Rock", "East Quay", "Elm Street", "Fallow Moor", "Fern Hollow", "Ferry Landing",
	"Fox Den", "Glen Rosa", "Goose Green", "Granite Pass", "Hazel Grove", "Heather Moor", "High Meadow", "Ivy Court",
	"Juniper Ridge", "Kestrel Cliff", "King's Cross", "Lake View", "Larch Valley", "Lime Walk", "Long Acre",
	"Maple Avenue", "Marsh End", "Mill Pond", "Mossy Bank", "Nettle Bed", "Noon Hill", "North Pier", "Oak Hall",
	"Old Town", "Otter Creek", "Owl Barn", "Pear Tree Yard", "Pebble Beach", "Pine Ridge", "Plum Lane", "Quarry Wood",
	"Raven Hill", "Red House", "Reed Island", "River Side", "Rose Cottage", "Saint-Malo", "Salt Marsh", "Sandy Bay",
	"Silver Spring", "South Lodge", "Stone Gate", "Sunny Bank", "Thistle Down", "Tower Hill", "Upper Farm",
	"Vine Street", "Walnut Yard", "West End", "Wild Garth", "Willow Bend", "Windmill Hill", "Yew Tree Farm",
}
